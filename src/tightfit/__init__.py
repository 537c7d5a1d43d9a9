"""tightfit runs image and video diffusion models on the memory your card has."""
