"""The imperative shell: what waits, wakes and runs by the wall clock."""
