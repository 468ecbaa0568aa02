"""The compiled helper: it runs the usual operation on SGLang's thread, without our Python.

Everything else is the Python wrappers', which do the same where there is no helper.
"""
