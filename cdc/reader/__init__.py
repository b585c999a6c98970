"""The log → changes for any program: typed events, at least once, from a group's position."""
