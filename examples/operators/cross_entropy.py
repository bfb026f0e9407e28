# SPDX-License-Identifier: MIT
"""One example for each operator of cross_entropy; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% CrossEntropyLossAndGrad
scores = np.array([[2, 0], [0, 0]], np.float32)
loss, gradient = cto.cross_entropy_loss_and_grad(scores, np.array([0, 1]))
print(loss.round(3))  # 0.41
print(gradient.round(3))
# > [[-0.06  0.06]
# >  [ 0.25 -0.25]]
cto.cross_entropy_loss_and_grad(scores, np.array([0, 1]), out=(None, scores))
# The gradient took the place of the scores.
print(scores.round(3))
# > [[-0.06  0.06]
# >  [ 0.25 -0.25]]

# %% DenseCrossEntropyLossAndGrad
scores = np.array([[2, 0], [0, 0]], np.float32)
target = np.array([[1, 0], [0.25, 0.75]], np.float32)  # distributions, not classes
loss, of_scores, of_target = cto.dense_cross_entropy_loss_and_grad(scores, target)
print(loss.round(3))  # 0.41
print(of_scores.round(3))
# > [[-0.06   0.06 ]
# >  [ 0.125 -0.125]]
print(of_target.round(3))
# > [[0.063 1.063]
# >  [0.347 0.347]]

# %% MeasuredCrossEntropyLossAndGrad
scores = np.array([[2, 0, 0], [0, 1, 0], [9, 9, 9]], np.float32)
labels = np.array([0, 2, -100])
found = cto.measured_cross_entropy_loss_and_grad(
    scores, labels, ignore_index=-100, lse_square_scale=0.01
)
loss, _, z_loss, predicted = found
print(loss.round(3), z_loss.round(3), predicted)  # 0.933 0.037 [ 0  1 -1]

# %% SoftmaxCrossEntropy
logits = np.array([[2, 0], [0, 0]], np.float32)
target = np.array([[1, 0], [0.25, 0.75]], np.float32)  # distributions, not classes
loss, log_prob = cto.softmax_cross_entropy(logits, target)
print(loss.round(3))  # 0.41
print(log_prob.round(3))
# > [[-0.127 -2.127]
# >  [-0.693 -0.693]]

# %% SoftmaxCrossEntropyGrad
logits = np.array([[2, 0], [0, 0]], np.float32)
target = np.array([[1, 0], [0.25, 0.75]], np.float32)
_, log_prob = cto.softmax_cross_entropy(logits, target)
print(cto.softmax_cross_entropy_grad(np.array([1], np.float32), log_prob, target).round(3))
# > [[-0.06   0.06 ]
# >  [ 0.125 -0.125]]

# %% SoftmaxCrossEntropyLoss
scores = np.array([[2, 0, 0], [0, 0, 0], [9, 9, 9]], np.float32)
labels = np.array([0, 1, -100])
loss, log_prob = cto.softmax_cross_entropy_loss(scores, labels, ignore_index=-100)
# Of the first two rows.
print(loss.round(3))  # 0.669
print(log_prob.round(3))
# > [[-0.24  -2.24  -2.24 ]
# >  [-1.099 -1.099 -1.099]
# >  [-1.099 -1.099 -1.099]]

# %% SoftmaxCrossEntropyLossGrad
scores = np.array([[2, 0, 0], [0, 0, 0], [9, 9, 9]], np.float32)
labels = np.array([0, 1, -100])
_, log_prob = cto.softmax_cross_entropy_loss(scores, labels, ignore_index=-100)
dy = np.array([1], np.float32)
print(cto.softmax_cross_entropy_loss_grad(dy, log_prob, labels, ignore_index=-100).round(3))
# > [[-0.107  0.053  0.053]
# >  [ 0.167 -0.333  0.167]
# >  [ 0.     0.     0.   ]]

# %% SoftmaxCrossEntropyLossInternal
scores = np.array([[2, 0], [0, 0]], np.float16)
loss, log_prob = cto.softmax_cross_entropy_loss_internal(
    scores, np.array([0, 1]), output_type=np.float32
)
print(loss.round(3), loss.dtype, log_prob.dtype)  # 0.41 float32 float32

# %% SoftmaxCrossEntropyLossInternalGrad
scores = np.array([[2, 0], [0, 0]], np.float16)
labels = np.array([0, 1])
_, log_prob = cto.softmax_cross_entropy_loss_internal(scores, labels, output_type=np.float32)
gradient = cto.softmax_cross_entropy_loss_internal_grad(
    np.array([1], np.float32), log_prob, labels, output_type=np.float16
)
print(gradient.round(3), gradient.dtype)
# > [[-0.06  0.06]
# >  [ 0.25 -0.25]] float16

# %% SparseSoftmaxCrossEntropy
logits = np.array([[[2, 0], [0, 0]]], np.float32)  # classes last
loss, log_prob = cto.sparse_softmax_cross_entropy(logits, np.array([[0, 1]]), reduction="none")
print(loss.round(3))  # [[0.127 0.693]]

# %% SparseSoftmaxCrossEntropyGrad
logits = np.array([[[2, 0], [0, 0]]], np.float32)
labels = np.array([[0, 1]])
_, log_prob = cto.sparse_softmax_cross_entropy(logits, labels)
print(cto.sparse_softmax_cross_entropy_grad(np.array([1], np.float32), log_prob, labels).round(3))
# > [[[-0.06  0.06]
# >   [ 0.25 -0.25]]]
