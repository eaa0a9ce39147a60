"""Sources of images with objects, one file a format: boxes, classes, and polygons or bitmaps."""
