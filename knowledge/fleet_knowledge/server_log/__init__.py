"""Reading of server logs: lines, phases, decode rates, failures. Pure: bytes in, values out."""
