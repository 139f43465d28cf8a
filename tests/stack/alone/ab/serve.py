"""A server with the probe in its own process, and the pace of production: an experiment has to set another."""

import time

from work import Work

from infercanary.probe import Probe

with Probe({"work": Work()}, interval_seconds=30, duty_cap=0.01):
    while True:
        time.sleep(1)
