"""The log → changes for programs of anybody: typed events, at least once, from where a group is."""
