"""A campaign against the whole: kills, damage, odd folders, odd configs, hostile exports."""
