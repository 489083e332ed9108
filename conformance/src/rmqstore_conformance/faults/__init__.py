"""A fixed workload that is cut short, refused and damaged at every place, and what a store may show afterwards."""
