"""A server with a probe in its process, at the interval of production; an experiment must override this interval."""

import time

from work import Work

from infercanary.probe import Probe

with Probe({"work": Work()}, interval_seconds=30, duty_cap=0.01):
    while True:
        time.sleep(1)
