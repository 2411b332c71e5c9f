"""The object store on S3, MinIO and servers compatible with them."""
