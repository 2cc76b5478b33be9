"""The life of a run outside its training processes: tables, queue, device leases, supervision and diagnosis. No torch."""
