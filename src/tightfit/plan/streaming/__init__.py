"""Which weights stay, which are streamed through which ring, and what a step then takes."""
