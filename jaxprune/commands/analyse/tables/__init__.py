"""The tables of `analyse`, from stored observations."""
