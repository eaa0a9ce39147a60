"""Tests of segmentation networks: whole images or windows, mirrors, scales, on images of any sizes."""
