"""Owns the tree of drafted tokens: its links, its mask, and the walk along which the target's
greedy choice agrees with it.

Node 0 of a request is the token that the target chose last, nodes 1 to n-1 are drafted. Links hold
node numbers, -1 for none.
"""

import torch


def link(parents):
    """(first child, next sibling) of each node, from the parent of each; siblings in the order of
    their numbers.
    """
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = first_child[parents[node]]
        first_child[parents[node]] = node
    return first_child, next_sibling


def lineage(parents, node):
    """A node and its ancestors, the root last."""
    line = [node]
    while line[-1] > 0:
        line.append(parents[line[-1]])
    return line


def _parents(selected, parent_list, topk):
    """The parent of each node. `selected` has the place of each drafted token among all candidates,
    topk of them a parent.
    """
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    groups = (candidate // topk for candidate in selected)
    return [-1, *(node_of.get(parent_list[group], 0) if group else 0 for group in groups)]


def build_tree_kernel_efficient_cpu(  # noqa: PLR0917 - the interface is SGLang's
    parent_list,
    selected_index,
    verified_seq_len,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    depth,
    draft_token_num,
    tree_mask_mode,
):
    """Fills links, positions and the ancestor mask of each request; mask mode 0 has columns for the
    prefix too, mode 1 has not.
    """
    mask, size, taken = tree_mask.view(-1), draft_token_num, 0
    for request, length in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[request].tolist(), parent_list[request].tolist(), topk)
        lines = [lineage(parents, node) for node in range(size)]
        _fill(request, size, parents, retrieve_index, retrieve_next_token, retrieve_next_sibling)
        positions.view(-1)[request * size : (request + 1) * size] = torch.tensor(
            [length + len(line) - 1 for line in lines]
        )
        before = length if int(tree_mask_mode) == 0 else 0
        for line in lines:
            row = mask[taken : taken + before + size]
            row[before:] = False
            row[[before + node for node in line]] = True
            taken += before + size


def _fill(request, size, parents, retrieve_index, retrieve_next_token, retrieve_next_sibling):
    first_child, next_sibling = link(parents)
    span = slice(request * size, (request + 1) * size)
    retrieve_index.view(-1)[span] = torch.arange(request * size, (request + 1) * size)
    retrieve_next_token.view(-1)[span] = torch.tensor(first_child)
    retrieve_next_sibling.view(-1)[span] = torch.tensor(next_sibling)


def reconstruct_indices_from_tree_mask(  # noqa: PLR0917 - the interface is SGLang's
    tree_mask,
    verified_seq_len,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    batch_size,
    draft_token_num,
):
    """Positions and links from the mask alone: `mask[b, i, j]` says that node j is an ancestor of
    node i, or i itself.
    """
    size = draft_token_num
    ancestors = tree_mask.view(batch_size, size, size).to(torch.bool).tril(-1)
    positions.copy_((ancestors.sum(-1) + verified_seq_len.view(-1, 1)).view(positions.shape))
    for request in range(batch_size):
        nearest = [
            max((place for place, is_one in enumerate(row) if is_one), default=0)
            for row in ancestors[request].tolist()
        ]
        _fill(
            request,
            size,
            [-1, *nearest[1:]],
            retrieve_index,
            retrieve_next_token,
            retrieve_next_sibling,
        )


def verify_tree_greedy_cpu(  # noqa: PLR0917 - the interface is SGLang's
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    """Walks each tree as long as a child is the token that the target chose, then adds the target's
    own next token.

    accept_index gets the accepted nodes, root first; accept_token_num counts them without the root.
    `retrive` is the caller's spelling.
    """
    tree = (retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist())
    for request, (tokens, chosen) in enumerate(
        zip(candidates.tolist(), target_predict.tolist(), strict=True)
    ):
        index, first_child, next_sibling = (part[request] for part in tree)
        node, path = 0, [0]
        while len(path) < accept_index.shape[1]:
            child = first_child[node]
            while child != -1 and tokens[child] != chosen[node]:
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
            node = child
        for place, accepted in enumerate(path):
            accept_index[request, place] = index[accepted]
            predicts[index[accepted]] = chosen[accepted]
        accept_token_num[request] = len(path) - 1
