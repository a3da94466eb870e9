"""Wrong answers: those a lab knows by name, and the small ones that a program makes."""
