"""The jobs room: what a caller holds while a job runs."""
