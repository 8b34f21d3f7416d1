"""timm_gcp: global covariance pooling (GCP) for timm. Importing it registers the models."""
