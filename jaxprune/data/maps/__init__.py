"""Sources of images with their label maps, the class of each pixel: folders, TFDS, the built-in scenes."""
