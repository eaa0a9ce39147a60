"""Removes `Expand` nodes in front of ONNX operators that broadcast implicitly."""

from typing import Any

# Operators that broadcast, all of whose inputs JAX has expanded to one shape.
BROADCASTING = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "And", "Or", "Xor", "Where"}
BROADCASTING |= {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


def leave_to_operators(graph: Any) -> None:
    """Removes `Expand` nodes in front of operators that broadcast, and nodes that are then unused.

    The operands of JAX's element-wise operations have the same shape; as long as one of them is not changed, the result
    keeps its shape. Expanded biases and means would be written to memory as whole arrays, layer by layer.

    Args:
      graph: an `onnx.GraphProto` converted from a traced JAX function, changed in place.
    """
    expanded = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Expand"}
    # Python numbers in the traced function stay scalars, so constants do not determine the shape.
    constants = {constant.name for constant in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    for node in graph.node:
        if node.op_type not in BROADCASTING:
            continue
        spread = [index for index, name in enumerate(node.input) if name in expanded]
        # A condition may also be a scalar.
        condition = int(node.op_type == "Where")
        full_size = [name for name in node.input[condition:] if name not in expanded and name not in constants]
        kept = [] if full_size else [index for index in spread if index >= condition][-1:]
        for index in spread:
            if index not in kept and (full_size or kept):
                node.input[index] = expanded[node.input[index]]
    drop_unread(graph)


def drop_unread(graph: Any) -> None:
    """Removes the nodes and constants of a graph that no output depends on."""
    needed_outputs, nodes = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if not needed_outputs.isdisjoint(node.output):
            nodes.append(node)
            needed_outputs.update(node.input)
    constants = [constant for constant in graph.initializer if constant.name in needed_outputs]
    shapes = [info for info in graph.value_info if info.name in needed_outputs]
    for field, kept in ((graph.node, nodes[::-1]), (graph.initializer, constants), (graph.value_info, shapes)):
        del field[:]
        field.extend(kept)
