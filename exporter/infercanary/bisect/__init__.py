"""``infercanary bisect``: names the component that changed the latency between two images, by experiments."""
