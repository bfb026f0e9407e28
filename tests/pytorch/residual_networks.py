# SPDX-License-Identifier: MIT
"""Small residual networks with the parts, names and class names of torchvision's."""

from __future__ import annotations

from torch import nn

MODULE = "torchvision.models.resnet"


def _conv(n_in, n_out, size, stride=1):
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


def _shortcut(n_in, n_out, stride):
    if stride == 1 and n_in == n_out:
        return None
    return nn.Sequential(_conv(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out))


class BasicBlock(nn.Module):
    __module__ = MODULE
    expansion = 1

    def __init__(self, n_in, width, stride=1, norm=nn.BatchNorm2d, relu=nn.ReLU) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(n_in, width, 3, stride), norm(width)
        self.relu = relu(inplace=True)
        self.conv2, self.bn2 = _conv(width, width, 3), norm(width)
        self.downsample = _shortcut(n_in, width, stride)

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = self.relu(self.bn1(self.conv1(x)))
        outer = self.bn2(self.conv2(inner))
        outer += shortcut
        return self.relu(outer)

    forward.__module__ = MODULE


class Bottleneck(nn.Module):
    __module__ = MODULE
    expansion = 4

    def __init__(self, n_in, width, stride=1) -> None:
        super().__init__()
        n_out = width * self.expansion
        self.conv1, self.bn1 = _conv(n_in, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, n_out, 1), nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(n_in, n_out, stride)

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        outer = self.bn3(self.conv3(inner))
        outer += shortcut
        return self.relu(outer)

    forward.__module__ = MODULE


class ResNet(nn.Module):
    __module__ = MODULE

    def __init__(self, block, n_classes=5) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = _conv(3, 8, 7, 2), nn.BatchNorm2d(8), nn.ReLU(True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        n, layers = 8, []
        for stride in (1, 2, 2, 1):
            layers.append(nn.Sequential(block(n, 8, stride), block(8 * block.expansion, 8)))
            n = 8 * block.expansion
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(n, n_classes)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))

    def forward(self, x):
        return self._forward_impl(x)

    _forward_impl.__module__ = forward.__module__ = MODULE
