"""The object store on S3, MinIO and what speaks like them."""
