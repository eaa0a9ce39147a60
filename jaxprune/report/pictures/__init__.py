"""Pictures of images and their patches: masks, selected and merged patches, scores, predictions."""
