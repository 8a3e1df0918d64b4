"""The daemon of a host: launches servers, proves what they run, drives load, journals what
happened. Never imports the controller.
"""
