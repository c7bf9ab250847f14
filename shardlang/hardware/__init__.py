"""Hardware: the catalogue of chips and its reader."""
