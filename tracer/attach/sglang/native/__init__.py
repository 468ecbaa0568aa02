"""The compiled helper: it runs the usual operation on SGLang's thread, without our Python.

The Python wrappers do everything else, and all of it where there is no helper.
"""
