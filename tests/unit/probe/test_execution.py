"""Cost of a canary whose runs take turns with requests, with a real pool and a simulated clock."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from infercanary.probe.pool import Pool
from infercanary.probe.schedule import plan
from tests.targets import Scripted, opened

REPEATS = 4
TAKES = 0.1  # seconds that a repeat takes by the simulated clock


class Clock:
    """Clock that only the work of the server and of the canary advances."""

    now = 1000.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


class Server(ThreadPoolExecutor):
    """Server with one thread; a request of ``request`` seconds always comes before the canary's turn."""

    request = 0.0

    def __init__(self, clock):
        super().__init__(1)
        self._clock = clock

    def submit(self, work, /, *arguments, **more):
        super().submit(self._clock.work, self.request)
        return super().submit(work, *arguments, **more)


@pytest.fixture
def served(monkeypatch):
    clock = Clock()
    for module in ("canary", "timed_target", "measures"):
        monkeypatch.setattr(f"infercanary.probe.{module}.perf_counter", clock)
    with Server(clock) as server:
        target = Scripted(lambda: clock.work(TAKES) or "a result")
        canary = opened(target, Pool(server, None))
        yield canary, server, target
        canary.close(30)


@pytest.mark.parametrize(
    ("request_seconds", "times"),
    # A round has one turn for each repeat and one for the output. In the second case, it waits for half of
    # its time.
    [(0.0, 1.0), (TAKES * REPEATS / (REPEATS + 1) / 2, 4.5), (TAKES, 8.0), (10 * TAKES, 8.0)],
    ids=["idle", "half", "as long as a repeat", "longer"],
)
def test_a_repeat_that_waited_for_its_turn_costs_up_to_eight_times_its_time(served, request_seconds, times):
    """Requests also wait for the canary's repeats. Waiting for a turn is not busy time. A failed run costs as much."""
    canary, server, target = served
    server.request = request_seconds
    for _ in range(5):
        done = canary.round(REPEATS)
        assert (done.outcome, len(done.latencies)) == ("ok", REPEATS)
        assert [done.busy, done.cost] == pytest.approx([REPEATS * TAKES, times * REPEATS * TAKES])
    assert [canary.crowding, canary.repeat_cost] == pytest.approx([times, times * TAKES])
    intervals = [plan([cost], 1.0, 0.01)[1] for cost in (canary.repeat_cost, TAKES)]
    assert intervals[0] == pytest.approx(times * intervals[1]), "the interval is longer by the same factor"
    work = target.act
    target.act = lambda: work() / 0
    server.request = min(request_seconds, TAKES)
    failed = canary.round(REPEATS)
    assert (failed.outcome, failed.busy) == ("raised", pytest.approx(TAKES))
    assert failed.cost == pytest.approx(TAKES + 7 * min(request_seconds, TAKES))
