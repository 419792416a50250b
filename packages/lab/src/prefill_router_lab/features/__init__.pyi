from .text_network import TextNetworkConfig as TextNetworkConfig
