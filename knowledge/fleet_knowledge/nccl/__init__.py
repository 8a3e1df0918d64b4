"""What is known of NCCL and RCCL: variables by version, their log lines, where SGLang passes them
by.
"""
