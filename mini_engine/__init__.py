"""The engine that the course teaches and the labs cut holes into."""
