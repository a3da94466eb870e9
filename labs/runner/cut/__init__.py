"""What a lab is: its `lab.toml`, its holes, and the file that is cut from the engine."""
