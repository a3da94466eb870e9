"""The simulated GPU: numpy only, with a CPU clock and a GPU clock."""
