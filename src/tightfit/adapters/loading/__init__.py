"""From a SPEC to a pipeline of diffusers, loaded."""
