"""What is known of the tools that benchfleet drives: SGLang, NCCL, GPU hosts. Tables and readers
over text; starts and asks nothing.
"""
