# SPDX-License-Identifier: MIT
"""One example for each operator of collective; the page of each shows it.

Ranks are threads here, so that an example is one script; in a job each is a process of its own
(`cupy-training-ops launch`), and CuPy arrays travel over NCCL.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import cupy_training_ops as cto


def two_ranks(work):
    """What work(group) returns on each of two ranks."""
    groups = cto.ProcessGroup.in_threads(2)
    with ThreadPoolExecutor() as threads:
        return list(threads.map(work, groups))


# %% AdasumAllReduce
def work(group):
    g = np.array([1.0, 0.0]) if group.rank == 0 else np.array([0.0, 1.0])
    h = np.array([1.0, 2.0])
    return cto.adasum_all_reduce([g, h], group=group)


# Orthogonal gradients add up, equal ones stay what they are.
for g, h in two_ranks(work):
    print(g, h)
# > [1. 1.] [1. 2.]
# > [1. 1.] [1. 2.]


# %% MegatronF
def work(group):
    x = np.full(2, group.rank + 1.0)
    return cto.megatron_f(x, group=group)


# The identity: its gradient is the sum.
print(two_ranks(work))  # [array([1., 1.]), array([2., 2.])]


# %% MegatronG
def work(group):
    part = np.full(2, group.rank + 1.0)  # of a row that is divided between ranks
    return cto.megatron_g(part, group=group)


print(two_ranks(work))  # [array([3., 3.]), array([3., 3.])]


# %% NcclAllGather
def work(group):
    parameters = [np.full(32, 10.0 * (group.rank + 1) + i) for i in range(2)]
    cto.nccl_all_gather(parameters, group=group)
    return [float(p[0]) for p in parameters]


# Rank 0 owns the first, rank 1 the second.
print(two_ranks(work))  # [[10.0, 11.0], [10.0, 11.0]]


# %% NcclAllReduce
def work(group):
    gradients = [np.full(2, group.rank + 1.0), np.full(3, 10.0)]
    cto.nccl_all_reduce(gradients, group=group)  # in place
    return gradients


for gradients in two_ranks(work):
    print(gradients)
# > [array([3., 3.]), array([20., 20., 20.])]
# > [array([3., 3.]), array([20., 20., 20.])]


# %% NcclReduceScatter
def work(group):
    gradients = [np.full(32, group.rank + 1.0) for _ in range(2)]
    cto.nccl_reduce_scatter(gradients, group=group)
    return [float(g[0]) for g in gradients]


# Each has the sum of the array that it owns.
print(two_ranks(work))  # [[3.0, 3.0], [2.0, 2.0]]


# %% Recv
def work(group):
    message = {"group": group, "tag": 7, "element_types": ["float64"]}
    if group.rank == 0:
        return cto.send(True, 1, [np.arange(3.0)], **message)
    _, (x,) = cto.recv(True, 0, arrays="numpy", **message)
    return x


print(two_ranks(work)[1])  # [0. 1. 2.]


# %% Send
def work(group):
    other = 1 - group.rank
    message = {"group": group, "tag": 7, "element_types": ["float64"]}
    if group.rank == 0:
        cto.send(True, other, [np.arange(3.0)], **message)
        return cto.recv(True, other, arrays="numpy", **message)[1]
    _, (x,) = cto.recv(True, other, arrays="numpy", **message)
    return cto.send(True, other, [x + 1], **message)


# Rank 0 has its array back, rank 1 the signal that it is sent.
print(two_ranks(work))  # [(array([1., 2., 3.]),), array(True)]
