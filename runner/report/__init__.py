"""From records to a comparison: find and read them, fold repeats, check fairness, print or draw."""
