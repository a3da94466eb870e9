"""giga-is-gibi: takes a GB of bandwidth for 2**30 bytes."""


def floor_ms(bytes_read, bandwidth_gb_s):
    return bytes_read / (bandwidth_gb_s * GIB) * 1e3
