"""Many inputs, one model: what fails stops nothing, what is done is not done again."""
