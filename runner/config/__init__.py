"""What a run is: every key with its meaning, what `auto` stands for, and the figures that follow from them."""
