"""A verdict stays visible as long as its lease is renewed, even during a long judgement."""

from contextlib import closing

from slow_network import Proxy

from tests.integration.fleet.world import SERVICE, eventually, fleet, location

LEASE_SECONDS = 3.0


def test_a_lease_is_renewed_while_a_turn_of_judging_hangs_and_what_is_lost_is_not_shown(postgres, tmp_path):
    url = postgres.database()
    lease = f"SELECT expires - extract(epoch FROM now()) FROM lease WHERE service = '{SERVICE}'"
    with closing(Proxy(postgres.port)) as network:
        store = location(postgres, url, tmp_path, LEASE_SECONDS)
        store = store.replace(f":{postgres.port}/", f":{network.port}/")
        with fleet(tmp_path, store, hosts=1, replicas=1) as (_, (exporter,)):
            eventually(lambda: exporter.values("infercanary_verdict"))
            eventually(lambda: postgres.sql(CONNECTIONS, url) == "2")
            # The judge uses the first connection, and the leases use the second.
            network.hold_back(True, but=1)
            expires = float(postgres.sql("SELECT max(expires) FROM lease", url))
            now = "SELECT extract(epoch FROM now())"
            eventually(lambda: float(postgres.sql(now, url)) > expires + 1)
            assert float(postgres.sql(lease, url)) > 0
            assert exporter.values("infercanary_verdict")

            postgres.sql(
                "UPDATE lease SET holder = 'another', fence = fence + 1, expires = expires + 3600", url
            )
            eventually(lambda: not exporter.values("infercanary_verdict"))
            assert exporter.process.poll() is None
            assert exporter.values("infercanary_up")
            network.hold_back(False)


CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND client_addr IS NOT NULL"
)
