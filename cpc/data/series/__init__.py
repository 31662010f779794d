"""Series in files of users: their formats, and how files become sequences."""
