"""What building the images needs: device code of one GPU only, the build's audit, bill of materials, sizes."""
