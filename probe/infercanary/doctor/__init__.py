"""``infercanary doctor``: checks the abilities of a probe on this machine. Each check is one function, and changes
nothing.
"""
