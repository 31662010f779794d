"""What every command shares: its flags, its config, its run directory and its devices."""
