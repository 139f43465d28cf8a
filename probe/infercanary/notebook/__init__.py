"""Interface for Python and notebooks: time a model in this process, read journals, and use the magics ``%canary`` and
``%%canary``.

::

    import infercanary

    before = infercanary.time(model, [{"shape": [1, 3, 224, 224]}])
    after = infercanary.time(faster, [{"shape": [1, 3, 224, 224]}])
    before.compare(after)  # needs the extra `exporter`
"""
