"""``infercanary doctor``: what a probe can do on this machine. Each check is one function; it changes nothing."""
