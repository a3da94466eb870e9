"""tied-head-counted-twice: lists a head for every model, since every model has one."""


def tensor_shapes(config):
    table = (config.vocab_size, config.hidden_size)
    shapes = {EMBED: table, FINAL_NORM: (config.hidden_size,), LM_HEAD: table}
    for index in range(config.num_layers):
        for tensors in layer_parts(config, index).values():
            shapes.update(tensors)
    return shapes
