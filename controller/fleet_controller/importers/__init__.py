"""The reading of pasted launch commands: text in, a job file and what could not be carried over
out. Runs nothing, reads no file.
"""
