"""For all tests."""

from hypothesis import settings

# Never a timed test: machines are shared, and a slow moment is no mistake.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
