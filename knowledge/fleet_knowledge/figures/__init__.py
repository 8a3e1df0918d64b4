"""Reading of figures that others print: /metrics, benchmark summaries."""
