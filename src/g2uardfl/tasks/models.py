"""The image models of the paper's experiments.

Every model takes normalised images and returns logits. Layers have descriptive names (`conv1`, `fc2`), because the
defence works layer by layer. LeNet and VGG-9 are those of Wang et al. (2020), "Attack of the Tails"; SimpleNet and
ResNet-18 are those of 3DFed (Li et al., 2023).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional


class LeNet(nn.Sequential):
    """The LeNet variant for 28x28 grey images: two convolutions, two linear layers, dropout (1,199,882 parameters).

    >>> sum(parameter.numel() for parameter in LeNet().parameters())
    1199882
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(1, 32, kernel_size=3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, kernel_size=3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout1=nn.Dropout(0.25),
                flatten=nn.Flatten(),
                fc1=nn.Linear(64 * 12 * 12, 128),
                relu3=nn.ReLU(),
                dropout2=nn.Dropout(0.5),
                fc2=nn.Linear(128, num_classes),
            )
        )


class SimpleNet(nn.Sequential):
    """The LeNet of 3DFed for 28x28 grey images: 5x5 convolutions with max pooling, no dropout (431,080 parameters).

    >>> sum(parameter.numel() for parameter in SimpleNet().parameters())
    431080
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(1, 20, kernel_size=5),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(20, 50, kernel_size=5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                fc1=nn.Linear(50 * 4 * 4, 500),
                relu3=nn.ReLU(),
                fc2=nn.Linear(500, num_classes),
            )
        )


class VGG9(nn.Sequential):
    """VGG-9 without BatchNorm for 32x32 colour images: eight 3x3 convolutions, one linear layer (9,225,610 parameters).

    Without BatchNorm the initialisation determines the scale of the activations, and with it whether the network
    trains at all. Convolutions start with variance 2 / fan-out, which preserves the scale of the gradients, and with
    zero biases.

    >>> sum(parameter.numel() for parameter in VGG9().parameters())
    9225610
    """

    stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))
    """Widths of the convolutions; each stage ends with 2x2 max pooling, which reduces 32x32 pixels to one."""

    def __init__(self, num_classes: int = 10) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        in_channels, conv = 3, 0
        for stage, widths in enumerate(self.stages, start=1):
            for width in widths:
                conv += 1
                layers[f"conv{conv}"] = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
                layers[f"relu{conv}"] = nn.ReLU()
                in_channels = width
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(in_channels, num_classes)
        super().__init__(layers)
        _initialise(self)


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 colour images: 3x3 stem without pooling, four stages of two blocks (11,173,962 parameters).

    The BatchNorm buffers (running mean and variance) are part of the model's state and are sent with the weights.

    >>> sum(parameter.numel() for parameter in ResNet18().parameters())
    11173962
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 64))
        self.layer2 = nn.Sequential(ResidualBlock(64, 128, stride=2), ResidualBlock(128, 128))
        self.layer3 = nn.Sequential(ResidualBlock(128, 256, stride=2), ResidualBlock(256, 256))
        self.layer4 = nn.Sequential(ResidualBlock(256, 512, stride=2), ResidualBlock(512, 512))
        self.fc = nn.Linear(512, num_classes)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of a batch of images."""
        x = functional.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean(dim=(-2, -1)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes (He et al., 2016)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                OrderedDict[str, nn.Module](
                    conv=nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                    bn=nn.BatchNorm2d(out_channels),
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """The output of the block; height and width are divided by its stride."""
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(residual + self.shortcut(x))


def _initialise(model: nn.Module) -> None:
    """Kaiming-normal convolutions (fan-out), and a last layer near zero, so that the initial loss is log(classes)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
